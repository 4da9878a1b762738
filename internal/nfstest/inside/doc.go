// Package inside has the tests of package nfstest that run inside a client, on a directory of an
// NFS mount. KVTIER_NFS_DIR names the directory.
package inside
