"""The project here is a user's: checkers read it, and its tests are not ours."""

collect_ignore = ["project"]
