// Package checkpoint stores a ZeRO training in files and brings it back, at the
// same or any other world size, stage and bucket size: a training that was resumed
// is bit for bit the one that never stopped.
//
// A folder of checkpoints holds one folder for each tag, and the file "latest"
// with the tag that was saved last:
//
//	checkpoints/
//	  latest
//	  step-000200/
//	    weights-00000-of-00002.safetensors    compute copies of whole parameters, by name
//	    weights-00001-of-00002.safetensors
//	    optimizer-00000-of-00002.safetensors  what rank 0 owned: pieces of master weights and states
//	    optimizer-00001-of-00002.safetensors
//	    ...                                   files of the caller
//	    manifest.json                         counters, parameters, and size and SHA-256 of every file
//
// The weights files hold every parameter, frozen and empty ones too, in the format
// it is computed in. The optimizer files hold fp32 tensors that are called
// "NAME/master[LO:HI]" and "NAME/STATE[LO:HI]": elements LO to HI of parameter
// NAME, row-major. Padding is nowhere, so nothing in the files depends on how the
// training was divided but where they are cut.
//
// # Writing
//
// [Saver.Save] is collective and all ranks write at once. The files go to a hidden
// folder, each is synced, the manifest comes last, and one rename makes the
// checkpoint appear. After an error on any rank all ranks return it, and the
// checkpoints that were there still are. [Saver.Begin] and [Pending.Commit] do the
// same off a copy, while the training goes on.
//
// # Reading
//
// [Open] reads one checkpoint's manifest and checks that every file and every
// element is there; [Folder.Verify] compares the checksums. [Folder.Master],
// [Folder.State] (for instance "ema") and [Folder.Weights] read one parameter by
// name; [Folder.Load] restores an optimizer. [Latest] and [Find] choose a checkpoint
// in a folder of them, [List] lists them.
package checkpoint

import (
	"errors"
	"fmt"
	"strings"
)

// Names of files in a checkpoint, and in a folder of checkpoints.
const (
	ManifestFile = "manifest.json"
	LatestFile   = "latest"

	master       = "master"     // the key of the fp32 weights beside the states' names
	savingPrefix = ".saving-"   // a checkpoint that is being written
	oldPrefix    = ".replaced-" // one whose tag is being written again
	hidden       = "."
)

// StepTag is the tag of a checkpoint that is made by the number of steps. Only
// checkpoints with such tags are deleted by [Options.Keep].
func StepTag(step int) string { return fmt.Sprintf("step-%06d", step) }

// isStepTag reports whether StepTag made the tag.
func isStepTag(tag string) bool {
	var step int
	_, err := fmt.Sscanf(tag, "step-%d", &step)
	return err == nil && tag == StepTag(step)
}

// CheckTag returns an error when tag cannot be the name of a folder everywhere.
func CheckTag(tag string) error {
	switch {
	case tag == "":
		return errors.New("tag is empty")
	case tag == LatestFile:
		return fmt.Errorf("tag %q is the name of the file that points to the last checkpoint", tag)
	case strings.HasPrefix(tag, hidden), strings.ContainsAny(tag, `/\:*?"<>|`), strings.ContainsFunc(tag, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("tag %q: allowed are letters, digits and signs but / \\ : * ? \" < > | and a dot at the beginning", tag)
	}
	return nil
}

// pieceName is the name of a tensor in an optimizer file.
func pieceName(param, key string, lo, hi int) string {
	return fmt.Sprintf("%s/%s[%d:%d]", param, key, lo, hi)
}

// parsePieceName is its inverse. A parameter's name may hold anything, a state's
// no slash.
func parsePieceName(name string) (param, key string, lo, hi int, err error) {
	slash, bracket := strings.LastIndexByte(name, '/'), strings.LastIndexByte(name, '[')
	if slash >= 0 && bracket > slash {
		param, key = name[:slash], name[slash+1:bracket]
		if _, err := fmt.Sscanf(name[bracket:], "[%d:%d]", &lo, &hi); err == nil && pieceName(param, key, lo, hi) == name && 0 <= lo && lo <= hi {
			return param, key, lo, hi, nil
		}
	}
	return "", "", 0, 0, fmt.Errorf("tensor %q: the name is not of the form NAME/STATE[LO:HI]", name)
}
