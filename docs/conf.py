"""The site's settings: `make docs` builds it, and a warning is an error there."""

project = "jupyter_dtrain"
extensions = ["myst_parser", "sphinx_copybutton"]
html_theme = "furo"
html_title = project
exclude_patterns = ["_build"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
suppress_warnings = ["misc.highlighting_failure"]  # cells begin with a magic, which Python's lexer does not know
