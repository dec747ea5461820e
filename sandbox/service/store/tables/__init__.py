"""The tables of the store, one file each: what is written to them and read from them."""
