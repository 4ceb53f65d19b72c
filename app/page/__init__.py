"""The page that people look at: static files, served as they lie in `static/`."""
