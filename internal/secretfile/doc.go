// Package secretfile reads small files with secrets of this machine's operator: keys, and who may do what.
package secretfile
