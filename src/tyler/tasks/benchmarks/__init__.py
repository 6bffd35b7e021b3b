"""The benchmarks, one module each: its name is the task's, and its TASK is a `tyler.tasks.task.Task` or `Generated`.

A module here is found by its name and loads when its task is used: nothing else lists them.
"""
