"""The methods that Tyler is compared with, one file each, on the same engine, problems and grader."""
