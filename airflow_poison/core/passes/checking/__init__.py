"""What ``check`` looks at, an idea a module. Each one reads, says what is wrong, and mends nothing."""
