/*
Package mounts gives real filesystems to tests, misbehaving ones, and to benchmarks,
slow ones. No other code uses the package. It works on Linux alone.

  - Passthrough is a FUSE filesystem that shows another directory, and can fail or stall kinds of
    requests, die, and vanish from its mount point while files are open.
  - Throttled is the same with a limit of bytes per second.
  - Image is a small filesystem of a given type (ext4, xfs) on a loop device: one that really becomes full.

All need root and a kernel that has the filesystem; a test without these is skipped, and says what is
missing. Mounts end with their test, even when it fails or panics.

A process cannot serve a FUSE filesystem that it uses: when it ends, the kernel waits for the server to answer
while it closes the files. So the test binary runs itself once more as the server, which begins in this
package's init and ends with the pipe to the test.
*/
package mounts
