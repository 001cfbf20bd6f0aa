"""Reports for people as single HTML files."""
