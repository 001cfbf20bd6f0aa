"""Shared parts of the commands: options, accounts that sign, a pool's file, and output."""
