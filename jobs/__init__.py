"""What a user touches: job files, submission checks, the command, status and inspection."""
