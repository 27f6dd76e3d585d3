"""The `robust` command. One module a command; heavy imports happen inside the commands, so that help is quick."""
