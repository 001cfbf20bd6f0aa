"""Modules that the commands share: options, accounts that sign, a pool's file, and output."""
