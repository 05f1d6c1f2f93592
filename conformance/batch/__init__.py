"""Many candidates: read, judged by processes of this machine or by a cluster, written down and summed up."""
