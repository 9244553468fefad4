"""`asyncrl chaos`: a job with something going wrong all the time."""
