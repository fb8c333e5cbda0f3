"""A user's own data: files, folders, frames, arrays and datasets become splits that networks can train on."""
