/*
Package mounts gives tests real filesystems that misbehave, and benchmarks slow
ones. Nothing else uses it, and it does something on Linux alone.

  - Passthrough is a FUSE filesystem that shows another directory. It can be
    told to fail or to stall kinds of requests, to die, and to vanish from its
    mount point, all while files are open.
  - Throttled is the same with a limit of bytes per second.
  - Image is a small filesystem of a given type (ext4, xfs) in a sparse file on
    a loop device: one that really becomes full, and that a killed process
    leaves behind as it was.

All need root and a kernel that has the filesystem. Where something is missing
the test that asks is skipped with a sentence that says what. Whatever a test
mounts is unmounted when it ends, however it ends.

A FUSE filesystem cannot be served by the process that uses it: when that
process ends, the kernel waits for the server to answer while it closes its
files. So the test binary runs itself once more as the server, which begins in
this package's init and ends with the pipe to the test.
*/
package mounts
