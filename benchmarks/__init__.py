"""Programs that measure how fast Gamebox is, each row beside a baseline that takes turns with it in the same run."""
