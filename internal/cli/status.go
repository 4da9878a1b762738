package cli

import (
	"errors"
	"fmt"
)

// Exit statuses of every command, besides 0.
const (
	Failed      = 1   // the command failed, or found damage
	Misused     = 2   // the command line, or a variable, is wrong; nothing was done
	Interrupted = 130 // as shells expect of a program stopped by Ctrl-C
)

// Error is an error of a command with an exit status.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Usage gives an error the status [Misused], for a wrong command line. Usage returns nil for
// nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Misused, err}
}

// Usagef is [Usage] of a formatted error.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Status is the exit status of a command that ended with err.
func Status(err error) int {
	var own *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own):
		return own.Status
	}
	return Failed
}
