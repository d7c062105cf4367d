"""Running programs: sessions on the requested device, with the state resident there."""
