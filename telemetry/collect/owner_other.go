//go:build !unix

package collect

import (
	"fmt"
	"os"
)

// ownerOf refuses a link. There are no owners to compare.
func ownerOf(dir string, _ bool) (uid int, err error) {
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory, remove it", dir)
	}
	return 0, err
}
