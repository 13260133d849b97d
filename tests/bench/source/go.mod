module source

go 1.24
