"""What every process of Covey runs on: its loop, HTTP server, settings, log and files."""
