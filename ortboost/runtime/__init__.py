"""Running programs: sessions on the device that was asked for, state that stays there."""
