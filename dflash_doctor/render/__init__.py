"""Reports as text, Markdown and JSON; the only room that writes GiB."""
