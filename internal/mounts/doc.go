/*
Package mounts gives real filesystems to tests, misbehaving ones, and to benchmarks,
slow ones. No other code uses the package. It works on Linux alone.

  - Passthrough is a FUSE filesystem that shows another directory. Tests can make
    it fail or stall kinds of requests, die, and vanish from its mount point, all
    while files are open.
  - Throttled is the same with a limit of bytes per second.
  - Image is a small filesystem of a given type (ext4, xfs) in a sparse file on
    a loop device: one that really becomes full, and that a killed process
    leaves behind as it was.

All need root and a kernel that has the filesystem. Without these a test is skipped,
with a sentence that names the missing part. Mounts of a test are unmounted when the
test ends, even when it fails or panics.

A FUSE filesystem cannot be served by the process that uses it: when that
process ends, the kernel waits for the server to answer while it closes its
files. So the test binary runs itself once more as the server, which begins in
this package's init and ends with the pipe to the test.
*/
package mounts
