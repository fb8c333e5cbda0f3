"""Prepared data: splits on disk, batches on the device."""
