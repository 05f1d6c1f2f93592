"""What can be judged here: ops and backends read off the folders, kernels and op files of a user, array libraries."""
