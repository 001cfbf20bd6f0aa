<<<<<<< HEAD
"""Kinds of environment: each module has one `TaskSource` and what it needs to grade."""
=======
"""Pure graders by kind of task: each module compares one extracted answer with what is known to be right."""
>>>>>>> 6b8db1b (feat(environments): extract answers and grade mathematics and texts)
