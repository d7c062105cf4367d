"""Running programs: sessions on the requested device, and state that stays there."""
