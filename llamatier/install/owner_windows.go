package install

import (
	"io/fs"
	"os"
)

func chownDir(string, int, int) error { return nil }

const neverWait = 0

func keepOwner(*os.File, fs.FileInfo) error { return nil }
