"""Server sessions: supervised child processes that run the user's handler, and the attempt journal that survives them."""
