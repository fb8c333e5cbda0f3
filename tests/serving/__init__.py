"""Real servers: uvicorn on a free port of 127.0.0.1."""
