"""Queue tables in Delta Lake format on a local or shared file system, committed through delta-rs."""
