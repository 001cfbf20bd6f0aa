"""Foundations of every Covey process: the loop, HTTP server, settings, log and files."""
