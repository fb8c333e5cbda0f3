"""What a run recorded, computed again from its files by code of its own: numpy, and nothing that made the record."""
