package collect

import "golang.org/x/sys/windows"

var errNoSpace error = windows.ERROR_DISK_FULL

func stranger(string) {}
