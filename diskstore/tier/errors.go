package tier

import (
	"errors"
	"fmt"
)

// Errors of opening a store. The configuration is wrong or unsafe, and nothing has been written.
var (
	// ErrRootSymlink reports a root that is a symbolic link: a user who can change the link
	// can read or replace the prompts below the root.
	ErrRootSymlink = errors.New("diskstore: root is a symbolic link")

	// ErrRootNotDir reports a root that exists and is not a directory.
	ErrRootNotDir = errors.New("diskstore: root is not a directory")

	// ErrRootOwner reports a root that belongs to another user.
	ErrRootOwner = errors.New("diskstore: root belongs to another user")

	// ErrRootMode reports a root that its group or all users may write to.
	ErrRootMode = errors.New("diskstore: root is writable by group or others")
)

// ErrNotFound reports a page that no tier has. It is no reason to fail a request: the caller computes the page again.
var ErrNotFound = errors.New("diskstore: page not found")

// Errors of a tier or of the store as a whole.
var (
	// ErrRootMissing reports a remote root that does not exist. The store never creates a
	// remote root, so that a mount point without its mount stays empty.
	ErrRootMissing = errors.New("diskstore: root does not exist")

	// ErrRootChanged reports that another directory, without pages, has taken the place of a
	// root: the mount is gone.
	ErrRootChanged = errors.New("diskstore: root is not the directory it was")

	// ErrNotShared reports a remote root to which another machine writes, on a filesystem
	// whose locks do not reach both machines. Pages of the root are still read.
	ErrNotShared = errors.New("diskstore: root is written by another machine")

	// ErrNoSpace reports that a page does not fit and that space was not freed in time.
	ErrNoSpace = errors.New("diskstore: no space for the page")

	// ErrTierDown reports a tier whose breaker is open: the tier failed or hung recently and
	// gets no operation until its backoff has passed.
	ErrTierDown = errors.New("diskstore: tier is down")

	// ErrTierTimeout reports an operation that a tier did not finish in time.
	ErrTierTimeout = errors.New("diskstore: tier did not answer in time")

	// ErrLocked reports that another process is collecting this tier.
	ErrLocked = errors.New("diskstore: another process is collecting")

	// ErrUncollected reports an engine that cannot tell one collector from two: rules of its own remove pages.
	ErrUncollected = fmt.Errorf("diskstore: nobody collects an engine that ignores conditions: %w", ErrLocked)

	// ErrClosed reports use of a store after Close.
	ErrClosed = errors.New("diskstore: store is closed")
)
