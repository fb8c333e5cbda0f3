-- Read by Postgres when its volume is new: a database for each server.
CREATE DATABASE prefect;
CREATE DATABASE mlflow;
