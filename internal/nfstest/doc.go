/*
Package nfstest tests the page store on real NFS: a kernel server and two kernel clients, each a
virtual machine of its own.

	packages_test.go       the kernel, modules, programs and libraries that scripts/nfs-packages unpacked
	archive_test.go        the files of a machine, as a cpio archive
	network_test.go        the network between the machines; a machine can be cut off
	machine_linux_test.go  one machine: QEMU, and the channel through which the machine runs commands
	cluster_linux_test.go  a server and two clients: exports, mounts, restarts
	guest/                 the program inside each machine: process 1, and the load that clients make
	inside/                the tests that run inside a client
	wire/                  the messages of the channel

The cases are in cases_linux_test.go. They run with KVTIER_NFS=1, by `make test-nfs`. QEMU
emulates the processor in software, so a case takes minutes, and no case depends on speed.
*/
package nfstest
