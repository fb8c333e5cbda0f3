"""One file per family of checks; each check is one small registered class."""
