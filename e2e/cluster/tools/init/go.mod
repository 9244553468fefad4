module asyncrl.io/e2e/cluster/init

go 1.24.0
