// Package storetest makes the pages, files and filesystems that tests of the store share.
package storetest
