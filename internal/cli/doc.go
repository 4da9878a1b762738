// Package cli is the common form of this repository's commands: errors of a command line that
// name the remedy, and exit statuses.
package cli
