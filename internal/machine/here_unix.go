//go:build linux || darwin

package machine

import "golang.org/x/sys/unix"

// noFollow makes an opening of a link fail.
const noFollow = unix.O_NOFOLLOW
