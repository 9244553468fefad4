"""The command line with shards and trainer on Ray, whatever the job's data plane."""

from asyncrl_runtime.__main__ import main
from asyncrl_runtime.app import backends, build

if __name__ == "__main__":
    build.host_for = backends.ray_cluster
    main()
