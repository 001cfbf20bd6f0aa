"""Pages for people, and the public JSON that they are made of. They are served by a process of their own."""
