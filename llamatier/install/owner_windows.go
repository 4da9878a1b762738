package install

import "io/fs"

func owner(fs.FileInfo) (uid int, ok bool) { return 0, false }

func chownDir(string, int, int) error { return nil }

func keepOwner(string, fs.FileInfo) error { return nil }
